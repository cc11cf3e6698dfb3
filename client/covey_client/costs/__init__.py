"""Cost tables: what rounds of one server take, by shape, as files, as pictures and interpolated."""
