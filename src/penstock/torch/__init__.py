"""The torch folder."""
