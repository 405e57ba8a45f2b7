"""One operator on one host: applies chunks whole or not at all, remembers outputs for replays, restarts from the changelog."""
