"""Reading a sweep directory: typed frames, figures, one self-contained HTML page. Reads files only."""
