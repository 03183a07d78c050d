"""What reports and results share: the HTML page, and the facts of the machine."""
