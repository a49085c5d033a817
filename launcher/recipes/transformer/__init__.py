"""The recipe of the encoder-decoder Transformer: settings, packaged configurations, checks."""
