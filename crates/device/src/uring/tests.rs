mod devices;
mod sockets;
mod watches;
