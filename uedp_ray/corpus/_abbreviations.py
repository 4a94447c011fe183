"""Full stops that end no sentence: in ordinals (``am 16. Juni``), initials (``J. Smith``, ``z. B.``) and abbreviations.

The tables are our own: spaCy's are written for its tokenizer (the Danish one holds "man." and "do."), do not say which
abbreviations may end a sentence, and take more than a second to import.
"""

from __future__ import annotations

import re


def _words(table: str) -> frozenset[str]:
    return frozenset(table.split())


# Lower-case entries stand for any case, others for themselves: "Fig. A" continues, a fig ends a sentence.
_GO_ON = _words(
    """
    adm capt cf col gen gov lt messrs mr mrs ms dr pres prof rep rev sen sgt st supt vs viz approx incl excl Fig Figs Ft Hon
    Maj Mt Sec
    abs abschn abzgl anl bspw buchst bzgl bzw ca dipl ehem evtl exkl frl geb gebr gez ggf hr hrn inkl insb nr sog stellv vgl
    ziff zzgl Abb Abt Bd Fa Fam Fr Frhr Hrsg Ing Kap Mag
    mlle mme núm pág sra sres srta dra MM Ste Sta Sto Lic Gral dott egr sig spett Avv Geom
    bijv blz dhr drs mevr Ir dvs eks evt jf jfr kl im inż mgr św tzn tzw např tzv mudr judr phdr
    """
)
_MAY_END = _words(
    """
    al apt ave blvd bros co corp dept etc ft inc jr llc ltd pct plc sr univ App Art
    betr bsp chr ff gem jh jun min mio mrd sek std str tel tsd usw av cie fr Cia Cía ecc ex np osv resp ud uds vd vds
    jan jän feb mrz apr jul aug sep sept okt oct nov dez dec
    """
)
_OPENERS = _words(  # what begins sentences far more often than names
    """
    A After All Also Although An And As At Because Before But By For From He Her Here His How However I If In Is It Its My No
    Not Now On Our Please She Since So Some That The Their Then There These They This Those Thus To We What When Where
    While Who Why With Yes You Your
    Aber Alle Als Am Auch Auf Aus Bei Bitte Da Daher Damit Danach Dann Das Dem Den Der Deshalb Die Dies Diese Dieser Dieses
    Doch Du Ein Eine Er Es Für Heute Hier Ich Ihr Ihre Im Jetzt Kein Keine Man Mein Meine Mit Nach Nicht Noch Nun Nur Ob
    Oder Ohne Sein Seine Seit Sie So Trotzdem Über Um Und Unser Unsere Vom Von Vor Warum Was Weil Wenn Wer Wie Wir Wo Zu
    Zum Zur
    Au Aussi Avec Ce Ces Cette Dans Elle Elles En Et Il Ils Je La Le Les Mais Nous Où Par Pour Quand Que Qui Sur Un Une Vous
    El Ella Ellos Con Cuando Como Este Esta Hoy Los Las Lo Para Pero Por Se Si Su Sus Y Ya
    Che Chi Gli Lei Lui Ma Nel Nella Noi Non Per Questo Questa
    Dat De Deze Dit Een Het Hij Ik Maar Met Op Toen Voor Wij Ze Zij
    """
)
_MONTHS = _words(
    """
    januar jänner jan jän februar feber feb märz mär mrz april apr mai juni jun juli jul august aug september sep sept
    oktober okt november nov dezember dez
    january february march may june july october oct december dec
    """
)
_BEFORE_ORDINALS = _words("am beim das dem den der des die im ins jede jedem jeden jeder jedes vom zum zur")  # German
_REACH = 32  # characters before a full stop that are looked at, so that hostile text costs no more than other text
_LETTERS = re.compile(r"[^\W\d_]{1,16}")
_LAST_LETTERS = re.compile(r"(?<![^\W\d_])[^\W\d_]{1,16}\Z")
_ORDINAL = re.compile(r"(?<![\w.,])(?:\d{1,3}|[IVX]{2,5})\Z")
_DATE = re.compile(r"[ \t]*\d{1,2}\.[ \t]+([^\W\d_]{1,16})")


def goes_on(text: str, stop: int, follower: int) -> bool:
    """Whether the sentence continues after the full stop at ``stop``, before the capital at ``follower``."""
    before = text[max(0, stop - _REACH) : stop]
    letters = _LETTERS.match(text, follower)
    following = letters[0] if letters else ""
    if letters := _LAST_LETTERS.search(before):
        word = letters[0]
        if len(word) == 1 and not (word.islower() and before[-2:-1] in ("'", "’")):  # but "It is Ann's." may end
            return True
        if word in _GO_ON or word.lower() in _GO_ON:
            return True
        if word in _MAY_END or word.lower() in _MAY_END:
            return following not in _OPENERS
    if _ORDINAL.search(before):
        return following.lower() in _MONTHS or _is_before_ordinals(before.split()[:-1])
    return False


def goes_on_with_ordinal(above: str, line: str) -> bool:
    """Whether ``line`` opens with an ordinal of the sentence above it, and not with the number of an item."""
    if _is_before_ordinals(above[-_REACH:].split()):
        return True
    date = _DATE.match(line)
    if not date or date[1].lower() not in _MONTHS or _DATE.match(above):  # dates below each other are a list
        return False
    last = above.rstrip()[-1:]
    return last.isalpha() or last == ","


def _is_before_ordinals(words: list[str]) -> bool:
    return bool(words) and words[-1].lower() in _BEFORE_ORDINALS and words[-2:] != ["I", "am"]  # I am 16.
