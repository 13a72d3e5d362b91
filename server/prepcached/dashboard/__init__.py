"""The dashboard: the page for people at `GET /`.

pages.py answers requests, history.py keeps the last day; the templates, the style sheet and the
script lie beside them.
"""
