"""What is on an HTML page."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Tags, links and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.opened, self.links, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.opened.append(tag)
        self.links += [v for k, v in attributes if k in ("src", "href", "xlink:href") and v]

    def handle_data(self, data):
        self.words.append(data)
