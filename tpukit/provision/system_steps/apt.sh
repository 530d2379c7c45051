# A package of the worker's own package sources.

fact() {
    installed "$value" || need "install $value"
}

change() {
    install_packages "$value"
}
