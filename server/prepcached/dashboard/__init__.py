"""The dashboard: the page for people at `GET /`.

routes.py answers requests, view.py collects what a page shows, history.py keeps the last day; the templates,
the style sheet and the script lie beside them.
"""
