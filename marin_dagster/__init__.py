"""An open laboratory for language models: recipes become artifacts with a record."""
