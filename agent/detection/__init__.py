"""Detection rules: Sigma files in, detections out; knows no other stage."""
