"""Readers, entity detectors, contribution bounds, the user corpus on disk, vocabularies, the synthetic corpus."""
