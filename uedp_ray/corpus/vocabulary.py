"""Text to token ids: a published tokenizer, words or pieces of words of public text, or words released from private text
with noise.

    vocabulary = build_vocabulary(VocabularyConfig(max_size=5000), public_text=lambda: iter(["the patient left ."]))
    vocabulary.encode_batch(["The patient left ."])     # [array([6, 5, 4, 3], dtype=int32)]
    vocabulary.save("model")                            # AutoTokenizer.from_pretrained("model") opens it

Every kind is a ``transformers.PreTrainedTokenizerFast``. All but the last read public text only. That one reads private text
and spends privacy: the caller writes ``vocabulary_event_fields`` to the ledger before it releases a word.

Pieces of words are byte pair encoding over bytes: Sennrich, Haddow and Birch, "Neural machine translation of rare words with
subword units" (2016); Radford et al., "Language models are unsupervised multitask learners" (2019).

Reference for releasing the keys of a private histogram by a noisy threshold: Korolova, Kenthapadi, Mishra and Ntoulas,
"Releasing search queries and clicks privately" (2009); with Gaussian noise and an L2 bound: Gopi et al., "Differentially
private set union" (2020).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from uedp_ray.config import VocabularyConfig
from uedp_ray.config.texts import FEWEST_SUBWORDS
from uedp_ray.errors import InputError
from uedp_ray.storage.files import check_regular, read_hub_json

_FEWEST_SLOTS = 8
"""Word slots of a sentence, at least: with fewer, of many sentences only the first word would count."""
UNKNOWN, END, PAD = "<unk>", "</s>", "<pad>"
SPECIAL = (UNKNOWN, END, PAD)
_KNOWN_ENDS = (END, "<|endoftext|>", "<eos>", "[SEP]")
MOST_BYTES = 1 << 28
"""The most bytes of one file of a tokenizer; the largest published ones take a seventh of it."""

MADE = "|".join(
    (
        r"(?:tokenizer(?:_config)?|special_tokens_map|added_tokens|vocab)\.json",
        r"[\w.]+\.model|vocab\.txt|merges\.txt|chat_template\.jinja",
    )
)
"""A regular expression, as for ``find_other``, of what ``Vocabulary.save`` makes of any tokenizer."""

_OWN = "restore the tokenizer's own"
_SOME_TEXT = "it has no tokens for some text: restore the tokenizer's own file, or name another tokenizer"
_MOST_GAPS = 1 << 20
"""The most ids that no token has; tokenizers go through them one by one."""

Noise = Callable[[int, float], np.ndarray]
"""``noise(size, std)``: that many independent N(0, std^2) draws, from the run's private noise source."""


class Vocabulary:
    """A fast tokenizer with an end token, used without truncation, padding or added special tokens."""

    def __init__(self, tokenizer: Any):
        """Takes ownership of ``tokenizer`` (a PreTrainedTokenizerFast): gives it an end token if it has none."""
        if not getattr(tokenizer, "is_fast", False):
            raise InputError("vocabulary.path", type(tokenizer).__name__, "needs a fast tokenizer (tokenizer.json)")
        if tokenizer.eos_token is None:
            words = tokenizer.get_vocab()
            candidates = (tokenizer.sep_token, *_KNOWN_ENDS)
            tokenizer.add_special_tokens({"eos_token": next((end for end in candidates if end in words), END)})
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
        self.tokenizer = tokenizer

    @classmethod
    def load(cls, directory: str | Path) -> Vocabulary:
        """Opens what ``save`` wrote, or any folder or hub name that ``AutoTokenizer`` knows, or a tokenizer.json."""
        path = Path(directory)
        for file in path.iterdir() if path.is_dir() else (path,):
            if file.suffix in (".json", ".txt") and file.exists():  # it may be a hub name
                check_regular(file, _OWN, most=MOST_BYTES)
                if file.name == "config.json":  # the network's, in which a tokenizer is looked for
                    read_hub_json(file, _OWN)
        from transformers import AutoTokenizer, PreTrainedTokenizerFast  # not to wait for it where nothing is tokenised

        vocabulary, sound = None, False
        try:
            if path.suffix == ".json" and path.is_file():
                tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))
            else:
                tokenizer = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False)
            if not tokenizer.get_vocab().keys() <= set(tokenizer.all_special_tokens):  # a model's folder without one
                vocabulary = cls(tokenizer)
                sound = vocabulary._sound()
        except InputError:
            raise
        except Exception:  # tokenizers raise bare Exception, and transformers whatever a damaged file causes
            pass
        if vocabulary is None or not sound:
            remedy = "not a tokenizer: give a folder or tokenizer.json, or a hub name while online"
            raise InputError("vocabulary.path", str(directory), remedy)
        return vocabulary

    def _sound(self) -> bool:
        """Whether it works: with a damaged one some call below fails, in any way."""
        self.encode_batch([""])
        self.decode([self.eos_id])
        if self.size > len(self.tokenizer) + _MOST_GAPS:
            return False
        if not self._reads_everything():
            raise InputError("vocabulary.path", self.tokenizer.name_or_path, _SOME_TEXT)
        ids = (self.eos_id, self.bos_id, self.pad_id, 0 if self.unk_id is None else self.unk_id)
        return all(isinstance(i, int) and 0 <= i < self.size for i in ids)

    def _reads_everything(self) -> bool:
        """Whether it has tokens for every text. One without would fail on some private text, and so reveal something."""
        model = json.loads(self.tokenizer.backend_tokenizer.to_str())["model"]
        kind, words = model["type"], model["vocab"]
        if kind == "Unigram":  # ``byte_fallback`` alone is not enough: some bytes may have no token
            return isinstance(model["unk_id"], int) and 0 <= model["unk_id"] < len(words)
        unknown = model["unk_token"]
        return unknown in words or (kind == "BPE" and unknown is None)  # which leaves out what it does not know

    def save(self, directory: str | Path, *, longest: int | None = None) -> None:
        """Writes tokenizer.json and its settings, beside a model if there is one, which reads at most ``longest`` tokens."""
        if longest is not None:
            self.tokenizer.model_max_length = longest
        self.tokenizer.save_pretrained(str(directory))

    @cached_property
    def size(self) -> int:
        """One more than the largest token id, special ones included: the model's output size. Ids may have gaps."""
        return max(self.tokenizer.get_vocab().values()) + 1

    @property
    def eos_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def bos_id(self) -> int:
        """The id of the token that a sentence begins with: the tokenizer's own, or the end token's where it has none."""
        begin = self.tokenizer.bos_token_id
        return self.eos_id if begin is None else begin

    @property
    def unk_id(self) -> int | None:
        """The id of unknown words; None where none exist (byte-level tokenizers)."""
        return self.tokenizer.unk_token_id

    @property
    def pad_id(self) -> int:
        """The padding token's id, or the end token's where there is none: padded positions are never predicted."""
        pad = self.tokenizer.pad_token_id
        return self.eos_id if pad is None else pad

    @property
    def digest(self) -> str:
        """SHA-256 of the serialised tokenizer."""
        return hashlib.sha256(self.tokenizer.backend_tokenizer.to_str().encode()).hexdigest()

    @property
    def words_are_tokens(self) -> bool:
        """Whether what stands between spaces is one token, unless the name of a special or an added one is in it."""
        parts = json.loads(self.tokenizer.backend_tokenizer.to_str())
        steps = (parts["normalizer"] or {}).get("normalizers", [parts["normalizer"]])
        whole = [each["type"] for each in (parts["model"], parts["pre_tokenizer"]) if each]
        return whole == ["WordLevel", "WhitespaceSplit"] and all(
            each in (None, {"type": "Lowercase"}) for each in steps
        )

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of each text, (T_i,) int32, possibly empty; sentence boundaries are left to the model.

        Raises: InputError if the tokenizer cannot read one, for example because it has no token for unknown words.
        """
        try:
            encoded = self.tokenizer.backend_tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # bare Exception, or a panic of Rust, and either may show the text
            raise InputError("tokenizer.json", self.tokenizer.name_or_path, _SOME_TEXT) from None
        return [np.asarray(one.ids, dtype=np.int32) for one in encoded]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Where in the text each token of ``encode_batch`` is: (first character, one beyond the last)."""
        return self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).offsets

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids, special tokens included; for words, what is left after normalisation."""
        return self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)


def build_vocabulary(
    config: VocabularyConfig,
    *,
    public_text: Callable[[], Iterable[str]] = tuple,
    private_texts: Iterable[Sequence[str]] = (),
    max_holders: int = 0,
    noise: Noise | None = None,
    added: Sequence[str] = (),
) -> Vocabulary:
    """The vocabulary a config asks for. ``max_size`` counts all its tokens; ``tokenizer`` ignores it.

    Args:
      public_text: opens the public sentences; for ``public-words`` and ``public-subwords``.
      private_texts: for ``noisy-threshold``, every user's sentences, less those that the contribution bounds drop or weigh
        below 1 (so that an entity occurs with at most ``max_holders`` users).
      max_holders: K, for ``noisy-threshold``; 0 protects users only.
      noise: for ``noisy-threshold``; see there.
      added: for ``public-words`` and ``public-subwords``, public words each of which is one token wherever it stands, in
        these very letters.

    Raises: InputError if ``max_size`` has no room for them, the tokenizer cannot be opened, or there is no public word.
    Releasing no private word is a release too, of a vocabulary without words.
    """
    if config.kind == "tokenizer":
        return Vocabulary.load(config.path)
    if config.kind == "public-subwords":
        return _with_words(_subword_vocabulary(public_text(), _room_beside(added, config)), added)
    normalize = _normalizer(config)
    if config.kind in (None, "public-words"):
        counts = Counter(word for text in public_text() for word in _words(normalize, text))
        if not counts:
            raise InputError("vocabulary.public_text", "no words", "name public text to count words in")
        frequent = (word for word, count in counts.items() if count >= config.min_count)
        words = sorted(frequent, key=lambda word: (-counts[word], word))
        return _with_words(_word_vocabulary(words, _room_beside(added, config)), added)
    if noise is None:
        raise InputError("vocabulary.kind", config.kind, "needs private text and a noise source")
    words = noisy_threshold_words(
        (word_slots([_words(normalize, text) for text in texts], config.max_words_per_user) for texts in private_texts),
        noise=noise,
        **vocabulary_event_fields(config, max_holders),
    )
    return _word_vocabulary(words, config)


def vocabulary_event_fields(config: VocabularyConfig, max_holders: int) -> dict[str, Any]:
    """The public parameters of ``noisy-threshold``: what the ledger needs in order to account for it."""
    return {
        "noise_multiplier": config.noise_multiplier,
        "max_holders": max_holders,
        "threshold_delta": config.threshold_delta,
        "max_words_per_user": config.max_words_per_user,
    }


def noisy_threshold(
    *, max_words_per_user: int, max_holders: int, noise_multiplier: float, threshold_delta: float
) -> float:
    """What a word's noisy count must exceed: (K+1)/sqrt(L) + z Phi^-1(1 - threshold_delta / ((K+1) L))."""
    concerned = max_holders + 1
    tail = threshold_delta / (concerned * max_words_per_user)
    return concerned / math.sqrt(max_words_per_user) - noise_multiplier * NormalDist().inv_cdf(tail)


def noisy_threshold_words(
    user_word_slots: Iterable[Sequence[str]],
    *,
    max_words_per_user: int,
    max_holders: int,
    noise_multiplier: float,
    threshold_delta: float,
    noise: Noise,
) -> list[str]:
    """Words that many users wrote, the most common first, released from private text.

    1. At most L = ``max_words_per_user`` words of a user are read, those of ``word_slots``; every distinct word there counts
       1/sqrt(L). A nulled sentence counts nothing, and no word of another moves up into its place.
    2. Counts are summed over users; each word that occurs gets independent noise of standard deviation
       ``noise_multiplier`` = z.
    3. Words above ``noisy_threshold`` are released; sorting by noisy count is post-processing.

    Guarantee, unit user-entity, relation zero-out on a fixed graph. One user's counts have L2 norm at most 1, so
    nulling a user moves the histogram by at most 1; nulling an entity only removes words of its at most K holders,
    1 each: at most K + 1 together. On words that occur in both worlds the release is therefore the Gaussian mechanism
    with sensitivity K + 1 and standard deviation z, post-processed: (eps, delta') for any pair on its curve. A word of
    one world only occurs with that user or those holders alone: its count is at most (K+1)/sqrt(L), there are at most
    (K+1) L such words, and each passes with probability at most threshold_delta / ((K+1) L). Together
    (eps, delta' + threshold_delta). With K = 0 it is the same for users alone.
    Void if an entity occurs with more than K users of ``user_word_slots``, or ``noise`` is not private.

    Source: Gopi et al. 2020 (weighted Gaussian), with the group of an entity's holders added.
    """
    histogram = word_histogram(user_word_slots, max_words_per_user)
    words = sorted(histogram)
    noisy = np.array([histogram[word] for word in words]) + noise(len(words), noise_multiplier)
    threshold = noisy_threshold(
        max_words_per_user=max_words_per_user,
        max_holders=max_holders,
        noise_multiplier=noise_multiplier,
        threshold_delta=threshold_delta,
    )
    return [words[i] for i in np.argsort(-noisy, kind="stable") if noisy[i] > threshold]


def word_slots(sentences: Sequence[Sequence[str]], max_words_per_user: int) -> list[str]:
    """The words of a user that are counted, at most ``max_words_per_user``: the first of each sentence, as many as its place
    has slots. That depends on the number of sentences, and on no word: what one says moves no word of another.
    """
    size = max(_FEWEST_SLOTS, -(-max_words_per_user // max(len(sentences), 1)))
    room = (min(size, max_words_per_user - place * size) for place in range(-(-max_words_per_user // size)))
    return [word for words, most in zip(sentences, room, strict=False) for word in words[:most]]


def word_histogram(user_word_slots: Iterable[Sequence[str]], max_words_per_user: int) -> dict[str, float]:
    """Step 1 of ``noisy_threshold_words``, without noise: private. One user's part has L2 norm at most 1."""
    users: Counter[str] = Counter()
    for slots in user_word_slots:
        users.update({word for word in slots[:max_words_per_user] if word})
    return {word: count / math.sqrt(max_words_per_user) for word, count in users.items()}


def _normalizer(config: VocabularyConfig) -> Any:
    steps: list[Any] = [normalizers.Lowercase()] if config.lowercase else []
    if config.strip_punctuation:
        steps.append(normalizers.Replace(Regex(r"\p{P}"), ""))
    return normalizers.Sequence(steps)


def _words(normalize: Any, text: str) -> list[str]:
    """Normalised words, exactly as the tokenizer will split them; special tokens in the text are not words."""
    return [word for word in normalize.normalize_str(text).split() if word not in SPECIAL]


def _word_vocabulary(words: Sequence[str], config: VocabularyConfig) -> Vocabulary:
    kept = (*SPECIAL, *words[: config.max_size - len(SPECIAL)])
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(kept)}, unk_token=UNKNOWN))
    tokenizer.normalizer = _normalizer(config)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _with_ends(tokenizer, unk_token=UNKNOWN)


def _subword_vocabulary(texts: Iterable[str], config: VocabularyConfig) -> Vocabulary:
    """Byte pair encoding over bytes: no text is unknown. The same texts give the same tokens, on any number of threads."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = _normalizer(config)
    # With a space before it, the first word of a sentence is the token that it is elsewhere.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.max_size,
        min_frequency=config.min_count,
        special_tokens=[END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() == FEWEST_SUBWORDS < config.max_size:
        remedy = "name public text to learn tokens from, or lower vocabulary.min_count"
        raise InputError("vocabulary.public_text", "no pair of letters", remedy)
    return _with_ends(tokenizer)


def _room_beside(added: Sequence[str], config: VocabularyConfig) -> VocabularyConfig:
    try:
        return replace(config, max_size=config.max_size - len(added))
    except InputError as error:
        remedy = f"has no room for the {len(added)} words that corpus.transform writes: raise it"
        raise InputError(error.field, config.max_size, remedy) from None


def _with_words(vocabulary: Vocabulary, words: Sequence[str]) -> Vocabulary:
    tokens = [AddedToken(word, lstrip=True, normalized=False) for word in words]
    vocabulary.tokenizer.backend_tokenizer.add_tokens(tokens)
    return vocabulary


def _with_ends(tokenizer: Tokenizer, **special: str) -> Vocabulary:
    from transformers import PreTrainedTokenizerFast

    return Vocabulary(
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            eos_token=END,
            pad_token=PAD,
            clean_up_tokenization_spaces=False,
            **special,
        )
    )
