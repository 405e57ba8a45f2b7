"""What settings of Spark bring: those of `godwit.tune`, one after another, and asynchronous progress tracking."""
