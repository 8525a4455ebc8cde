"""`make demo`: what penstock does, on 1,797 handwritten digits or on images of your own."""
