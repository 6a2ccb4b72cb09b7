"""Results as people read them: the terminal's table, figures, one HTML page, the model card's table."""

from skipwise.report.page import write_report
from skipwise.report.summary import summary_markdown, summary_table

__all__ = ["summary_markdown", "summary_table", "write_report"]
