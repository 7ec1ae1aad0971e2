"""What is known of ops: what each takes of what it reads, and over what it may write."""
