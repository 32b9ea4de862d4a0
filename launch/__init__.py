"""What engines of clusters start: job files of queues. They only set up what is there already."""
