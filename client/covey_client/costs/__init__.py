"""`covey profile`: a server's cost curves, measured from outside by requests of known shapes."""
