"""The report: one page with tables, figures and wrongly classified test images."""
