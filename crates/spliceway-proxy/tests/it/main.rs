//! One module for each thing the program promises; every test runs the real binary over loopback.
