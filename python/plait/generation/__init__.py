"""Text from prompts: requests, the scheduler that runs them side by side, and what it makes of them."""
