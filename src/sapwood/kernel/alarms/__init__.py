"""Which sleeping trees and agents are due: two derived indexes."""
