#!/bin/sh
# Cuts the corpora in $UEDP_DATA into what the recipes beside this file read, in the folder $UEDP_TEXTS.
#   UEDP_DATA=/path/to/corpora UEDP_TEXTS=/path/to/new-folder sh sweeps/paper/texts.sh
# CUAD is one file: private and held-out text, between which no user is divided (it is in the order of its companies). The
# files named small are for --set scale=small.
set -eu
mkdir -p "$UEDP_TEXTS"
cuad=$UEDP_DATA/cuad/cuad_contracts.jsonl
head -n 460 "$cuad" > "$UEDP_TEXTS/cuad.jsonl"
tail -n +461 "$cuad" > "$UEDP_TEXTS/cuad-held-out.jsonl"
documents() { awk -v most="$1" '/^-DOCSTART-/ { count++ } count <= most' "$2"; }
documents 100 "$UEDP_DATA/conll2003/eng.train" > "$UEDP_TEXTS/conll-small.train"
documents 30 "$UEDP_DATA/conll2003/eng.testa" > "$UEDP_TEXTS/conll-small.testa"
awk 'length < 9000' "$UEDP_TEXTS/cuad.jsonl" > "$UEDP_TEXTS/cuad-small.jsonl" # short contracts
awk 'length < 9000' "$UEDP_TEXTS/cuad-held-out.jsonl" > "$UEDP_TEXTS/cuad-held-out-small.jsonl"
