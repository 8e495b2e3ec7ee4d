"""The equations of the papers as they were published, and corrected ones beside them."""
