"""Everything that needs torch: models, caches, drawing tokens, drafters."""
