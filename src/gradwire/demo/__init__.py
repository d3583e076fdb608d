"""The demo: one small training, once for each way of exchanging gradients."""
