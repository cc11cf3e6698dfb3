"""Cost tables: the time of one server's rounds by shape, as files and interpolated."""
