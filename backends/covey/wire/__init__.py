"""The wire between the models of one server: messages, frames and the token that seals them. Knows no Triton."""
