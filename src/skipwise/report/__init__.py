"""Results as people read them: tables, figures, one HTML page, the model card."""
