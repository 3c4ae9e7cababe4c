"""The warm-up study: each case in fresh processes, after each number of warm-up rounds."""
