"""Trust: mesh token, authority, credentials, roles."""
