"""Cost tables: what rounds of one server take, by shape, as files and interpolated."""
