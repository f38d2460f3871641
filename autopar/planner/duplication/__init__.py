"""Task duplication: computing a cluster again on another device in place of a transfer."""
