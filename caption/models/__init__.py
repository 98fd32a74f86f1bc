"""One file per captioning paper: only what that paper adds."""
