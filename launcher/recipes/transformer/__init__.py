"""The encoder-decoder Transformer's recipe: settings, packaged configurations, checks."""
