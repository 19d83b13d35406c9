"""Are the kernels written in the NKI language? A walker over their source, and the open NKI front end."""
