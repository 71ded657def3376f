VERSIONS=("dev","2026.11.30")
def experiment(version): return ()
