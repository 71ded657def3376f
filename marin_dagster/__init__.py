"""An open laboratory for language models: recipes become artifacts, artifacts carry their record."""
