//! Simulation of networks of connection managers.

mod sim;
