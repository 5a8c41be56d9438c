"""Parts of the HTML page: answers, exhibits (plots), tables and readable generations."""
