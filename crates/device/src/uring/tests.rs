mod devices;
mod sockets;
