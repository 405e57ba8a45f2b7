"""User code: what a processor is called with, what it returns, and what is done when it hangs, fails or ends the process."""
