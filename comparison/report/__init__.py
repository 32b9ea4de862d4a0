"""The report: one page with tables, figures and mistakes."""
