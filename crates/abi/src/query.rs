//! What a device and its port can do, GIDs, P_Keys, clocks.
