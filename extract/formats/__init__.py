"""Other programs' feature files, one small file each; `extract.formats.registry` lists them."""
