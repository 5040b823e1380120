"""SeedΔ files, dense source models and importance matrices, all in GGUF (needs the extra `cli` or `llama`)."""
