//! Nothing here: the tests of this package prove the crate against other programs.
