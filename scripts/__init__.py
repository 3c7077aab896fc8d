"""Programs around the product: set-up and the demo. Nothing imports them."""
