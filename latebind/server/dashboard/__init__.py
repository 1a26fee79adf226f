"""The dashboard: a page that shows what the server does, and the figures behind it. It reads and changes nothing."""
