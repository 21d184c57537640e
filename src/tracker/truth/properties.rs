//! What holds for every history.
